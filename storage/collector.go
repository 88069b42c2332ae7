package storage

// collector gathers the records of one read. Its rules are RocketMQ's: the
// bounds are looked at before each record, whether it is wanted or not, and
// never stop the first one.
type collector struct {
	r      *Read
	res    ReadResult
	farEnd int64 // records that begin before it are far
	scan   int   // records still to be looked at
	hint   int   // bytes that are probably there
}

func (s *Store) newCollector(r *Read, res ReadResult) *collector {
	scan := r.MaxScan
	if scan <= 0 {
		scan = defaultScan
	}
	c := &collector{r: r, res: res, scan: scan}
	if r.FarBytes > 0 {
		c.farEnd = s.LogEnd() - r.FarBytes
	}
	c.res.Status = NoMatch
	return c
}

// add takes what it wants of a chunk, from the offset to be read next on. It
// returns false when the read is over.
func (c *collector) add(ch chunk) bool {
	first, position := ch.firstOffset(), ch.position()
	i := int(max(c.res.Next-first, 0))
	from := i // from here to i records are wanted and not copied yet
	for ; i < ch.n; i++ {
		start, end := ch.start(i), ch.end(i)
		if c.scan == 0 || c.full(i-from, start-ch.start(from), end-start, position+int64(start)) {
			c.copy(ch, from, i)
			return false
		}
		c.scan--
		c.res.Next = first + int64(i) + 1
		if c.r.Match != nil && !c.r.Match(ch.tagHash(i), ch.record(i)) {
			c.copy(ch, from, i)
			from = i + 1
		}
	}
	c.copy(ch, from, i)
	return true
}

// full says whether a record must not be added any more; count and bytes are
// wanted records that were not copied yet.
func (c *collector) full(count, bytes, size int, position int64) bool {
	count += c.res.Count
	bytes += len(c.res.Data)
	if count == 0 {
		return false
	}
	limit := c.r.Near
	if position < c.farEnd {
		limit = c.r.Far
	}
	return limit.Count > 0 && count >= limit.Count || limit.Bytes > 0 && bytes+size > limit.Bytes
}

// copy appends the records from..to of a chunk to the result.
func (c *collector) copy(ch chunk, from, to int) {
	if from >= to {
		return
	}
	at, start, end := ch.recordsAt(), ch.start(from), ch.end(to-1)
	if c.res.Count == 0 {
		c.res.FirstPosition = ch.position() + int64(start)
		c.res.Data = make([]byte, 0, c.room(end-start, to-from))
	}
	c.res.Data = append(c.res.Data, ch.value[at+start:at+end]...)
	c.res.Count += to - from
	c.res.Status = Found
}

// room is the size of the result's buffer, judged by its first records: as much
// as is there, within the bounds.
func (c *collector) room(bytes, count int) int {
	room := c.hint
	if limit := c.r.Near; limit.Bytes > 0 {
		room = min(room, limit.Bytes)
	}
	if limit := c.r.Near; limit.Count > 0 {
		room = min(room, bytes/count*limit.Count)
	}
	return max(room, bytes)
}

// result is the read's answer.
func (c *collector) result() ReadResult { return c.res }
