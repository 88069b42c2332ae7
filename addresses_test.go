package mq

import (
	"slices"
	"testing"
)

func TestParseAddresses(t *testing.T) {
	for _, c := range []struct {
		in   []string
		want []string // nil: an error
	}{
		{[]string{"127.0.0.1:9876"}, []string{"127.0.0.1:9876"}},
		{[]string{"a:1;b:2,c:3 d:4"}, []string{"a:1", "b:2", "c:3", "d:4"}},
		{[]string{" a:1 ; ", "", "b:2"}, []string{"a:1", "b:2"}},
		{[]string{"a:1", "a:1;a:1"}, []string{"a:1"}},
		{[]string{"[::1]:9876"}, []string{"[::1]:9876"}},
		{[]string{"[fe80::1%eth0]:9876"}, []string{"[fe80::1%eth0]:9876"}},
		{[]string{"rmq-1.ns_2.svc:9876"}, []string{"rmq-1.ns_2.svc:9876"}},
		{[]string{"http://127.0.0.1:9876"}, []string{"127.0.0.1:9876"}},
		{[]string{"HTTP://host:9876/"}, []string{"host:9876"}},
		{[]string{}, []string{}},
		{[]string{"http://host:8080/rocketmq/nsaddr"}, nil},
		{[]string{"https://host:443"}, nil},
		{[]string{"host"}, nil},
		{[]string{"host:"}, nil},
		{[]string{":9876"}, nil},
		{[]string{"host:0"}, nil},
		{[]string{"host:65536"}, nil},
		{[]string{"host:-1"}, nil},
		{[]string{"host:x"}, nil},
		{[]string{"::1:9876"}, nil},
		{[]string{"[host]:9876"}, nil},
		{[]string{"[::1]"}, nil},
		{[]string{"[::1"}, nil},
		{[]string{"ho/st:1"}, nil},
		{[]string{"a:1;b"}, nil},
	} {
		got, err := parseAddresses("Field", c.in)
		if c.want == nil {
			if err == nil {
				t.Errorf("parseAddresses(%q) = %q, want an error", c.in, got)
			}
			continue
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("parseAddresses(%q) = %q, %v; want %q", c.in, got, err, c.want)
		}
	}
}

func FuzzParseAddresses(f *testing.F) {
	f.Add("[::1]:9876;http://a:1,b:2 ")
	f.Fuzz(func(t *testing.T, list string) {
		addrs, err := parseAddresses("Field", []string{list})
		if err != nil {
			return
		}
		// What was understood is understood again, as the same.
		again, err := parseAddresses("Field", addrs)
		if err != nil || !slices.Equal(addrs, again) {
			t.Errorf("%q gave %q, which gives %q, %v", list, addrs, again, err)
		}
	})
}
