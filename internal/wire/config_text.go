package wire

import (
	"maps"
	"slices"
	"strings"
)

// FormatConfig is a configuration as text, a line key=value for each key, as the
// answer to GET_BROKER_CONFIG carries it.
func FormatConfig(config map[string]string) []byte {
	var b []byte
	for _, key := range slices.Sorted(maps.Keys(config)) {
		b = append(b, key...)
		b = append(b, '=')
		b = append(b, config[key]...)
		b = append(b, '\n')
	}
	return b
}

// ParseConfig reads such a text. Empty lines and comments, which begin with # or !,
// are skipped; a line without = is malformed. Of a key that comes twice the last
// counts.
func ParseConfig(b []byte) (map[string]string, error) {
	config := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return nil, malformed("configuration: the line %q is not key=value", line)
		}
		config[key] = strings.TrimSpace(value)
	}
	return config, nil
}
