package storage

// selection takes the smallest pairs beyond a bound out of many sorted lists, in bounded memory and whatever the hashes are:
// a pass over all lists yields about limit pairs, the next pass begins behind the last of them.
type selection struct {
	limit  int
	pairs  []indexPair // the pass's yield, sorted once it is finished
	sorter pairSorter

	after   indexPair // pairs up to this one were yielded by earlier passes
	started bool
	until   indexPair // pairs beyond this one are left to later passes
	cut     bool
}

// take adds what belongs to this pass of one list.
func (s *selection) take(list indexList) {
	i := 0
	if s.started {
		i = list.search(s.after)
		if i < list.len() && list.pair(i) == s.after {
			i++
		}
	}
	for n := list.len(); i < n; i++ {
		p := list.pair(i)
		if s.cut && p.compare(s.until) > 0 {
			return
		}
		s.pairs = append(s.pairs, p)
		if len(s.pairs) >= 2*s.limit {
			s.shrink()
			if p.compare(s.until) > 0 {
				return
			}
		}
	}
}

// shrink keeps the smaller half and lowers the pass's upper bound to it.
func (s *selection) shrink() {
	s.pairs = s.sorter.sort(s.pairs)[:s.limit]
	s.until, s.cut = s.pairs[s.limit-1], true
}

// finish sorts the yield.
func (s *selection) finish() { s.pairs = s.sorter.sort(s.pairs) }

// next prepares the following pass and reports whether there is one.
func (s *selection) next() bool {
	more := s.cut
	if len(s.pairs) > 0 {
		s.after, s.started = s.pairs[len(s.pairs)-1], true
	}
	s.pairs, s.cut = s.pairs[:0], false
	return more
}
