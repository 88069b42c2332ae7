package wire

// TagHash is the code under which a consume queue knows a tag: Java's
// String.hashCode, that is over UTF-16 units, sign-extended; 0 for no tag. The
// hash that RocketMQ's Go client computes, over UTF-8 bytes, differs from it for
// everything outside ASCII.
func TagHash(tag string) int64 {
	var h int32
	for _, r := range tag {
		if r >= 0x10000 {
			r -= 0x10000
			h = 31*h + (0xD800 + r>>10)
			r = 0xDC00 + r&0x3ff
		}
		h = 31*h + r
	}
	return int64(h)
}
