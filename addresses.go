package mq

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// parseAddresses reads name-server lists as users write them: host:port, several
// to an entry with ";", "," or blanks between them, IPv6 in brackets. An http://
// in front is taken off, as RocketMQ does with endpoints; a path after it means a
// look-up service, which is refused rather than guessed at. Repeats are dropped,
// the order is kept. All faults are reported together, each under the field's name.
func parseAddresses(field string, lists []string) ([]string, error) {
	var addrs []string
	var faults []error
	for _, list := range lists {
		for _, item := range strings.FieldsFunc(list, isAddressBreak) {
			addr, err := parseAddress(item)
			if err != nil {
				faults = append(faults, fmt.Errorf("mq: %s: %w", field, err))
			} else if !slices.Contains(addrs, addr) {
				addrs = append(addrs, addr)
			}
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return addrs, nil
}

// needAddresses is parseAddresses for lists that must not be empty.
func needAddresses(field string, lists []string) ([]string, error) {
	addrs, err := parseAddresses(field, lists)
	if err == nil && len(addrs) == 0 {
		err = fmt.Errorf("mq: %s is empty, want at least one host:port", field)
	}
	return addrs, err
}

func isAddressBreak(r rune) bool {
	return r == ';' || r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r'
}

func parseAddress(item string) (string, error) {
	bare := item
	if scheme, rest, ok := strings.Cut(item, "://"); ok {
		if !strings.EqualFold(scheme, "http") {
			return "", addressError(item, "only host:port is understood, not "+scheme+"://")
		}
		bare = strings.TrimSuffix(rest, "/")
		if strings.ContainsAny(bare, "/?#@") {
			return "", addressError(item, "look-up over HTTP is not supported; give the name servers as host:port")
		}
	}
	host, port, err := net.SplitHostPort(bare)
	if err != nil {
		return "", addressError(item, "want host:port, IPv6 as [::1]:9876")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", addressError(item, "the port must be a number from 1 to 65535")
	}
	if strings.HasPrefix(bare, "[") {
		if ip, err := netip.ParseAddr(host); err != nil || !ip.Is6() {
			return "", addressError(item, "what stands in brackets is no IPv6 address")
		}
	} else if !isHostName(host) {
		return "", addressError(item, "the host must be a name or an IPv4 address")
	}
	return net.JoinHostPort(host, port), nil
}

func isHostName(host string) bool {
	for i := range len(host) {
		switch c := host[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-' || c == '.' || c == '_':
		default:
			return false
		}
	}
	return host != ""
}

func addressError(item, why string) error {
	return fmt.Errorf("address %q: %s", item, why)
}
