// Package a2aqueue carries A2A over AMQP 0-9-1, as RabbitMQ speaks it: peers behind a queue get the same calls, the same
// states and the same guarantees as peers behind HTTP.
//
// A [Broker] is the program's only way to one virtual host. It holds two connections, one to publish and one to consume,
// so that a broker that stops taking messages doesn't stop us from acknowledging those it gave us, and it makes them
// again for ever when they are lost. Publish returns when the broker has confirmed the message; Consume runs until its
// context ends and acknowledges what its handler settled. Everything that can block is bounded: a publish by its
// context and by BrokerConfig.PublishTimeout, a write by BrokerConfig.WriteTimeout, a silent connection by its
// heartbeats, the work on deliveries by the prefetch.
//
// No AMQP channel is shared between goroutines: each has one that owns it and hands out what comes in.
package a2aqueue
