// Package storage keeps queues of records on Pebble: a commit log cut into
// chunks, the consume queues over it, a key index, timers, group offsets and
// small metadata, all written in one atomic batch per group of requests.
//
// It is what a broker of package mq is built on, public for those who build
// something else on it. Programs that send and receive messages do not need it.
//
// The package knows records, not messages. A [Record] is bytes that the caller
// finished, with three holes (queue offset, position, store time) that the
// store fills in when it gives the record its place.
//
// # Guarantees
//
// With [FlushSync] a completed request survives power loss; with [FlushAsync]
// it survives the death of the process, and power loss costs at most the flush
// interval; without a directory nothing survives Close. Offsets and positions
// never go back and are never used twice, not after trimming and not after a
// restart. An error after a request was taken means that the outcome is
// unknown, unless the error says otherwise.
//
// # Goroutines
//
// A store runs one builder and one committer (together: the lane), one
// completer that calls [Completion], one waker that calls Options.Grown, one
// watcher that answers requests whose group is stuck, and what the key index,
// the timers and the file system need. All of them end before Close returns.
package storage
