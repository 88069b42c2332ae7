// Package mq is RocketMQ inside a Go process: name server, broker, producer and
// consumer as one importable package.
//
// # Model
//
// A [NameServer] knows which [Broker] has which topics. Brokers register with
// every name server; name servers do not talk to each other. A topic has queues
// on one or more brokers; a message is appended to one queue and has an offset
// there. A [Producer] sends. The consumers of one group share a topic's queues: each
// queue belongs to one [Consumer] of the group at a time, and the group's progress
// is one committed offset per queue.
//
// # Guarantees
//
// What a broker acknowledged is kept: with sync flush, the default, it is on disk
// before the answer. Delivery is at least once; the committed offset is the
// smallest unfinished one, so a crash or a rebalance repeats messages and loses
// none. Order is kept inside a queue, for messages one goroutine sent one after
// the other, when the consumer is an ordered one. An error of a send that wraps
// [ErrOutcomeUnknown] means that the message may be stored, and sending it again may
// duplicate it; after any other nothing was stored.
//
// # Embedding
//
// New… checks the configuration and does no I/O; Start(ctx) returns when the
// thing is usable; Close may be called at any time and waits for every
// goroutine. Nothing here exits the process, traps a signal, prints, or keeps
// package-level state.
//
// # Testing
//
// With [transport.NewMemory] and no directory a whole cluster opens no socket and
// no file, and runs inside a testing/synctest bubble: hours of delays take
// milliseconds.
//
// [transport.NewMemory]: https://pkg.go.dev/github.com/pocketmq/mq/transport#NewMemory
package mq
