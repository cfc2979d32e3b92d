package httpapi

import (
	"math"
	"strconv"
	"sync"
	"time"
)

// limiter bounds each principal's requests: a bucket of tokens that fills at a rate.
type limiter struct {
	rate  float64 // a second; negative: no bound
	burst float64

	mu      sync.Mutex
	buckets map[string]*bucket
	swept   time.Time
}

type bucket struct {
	tokens float64
	at     time.Time
}

func newLimiter(rate float64, burst int) *limiter {
	return &limiter{rate: rate, burst: float64(burst), buckets: make(map[string]*bucket)}
}

// take takes a token, or says how long to wait for one.
func (l *limiter) take(principal string) time.Duration {
	if l.rate < 0 {
		return 0
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.swept) > time.Minute {
		for name, b := range l.buckets {
			if b.tokens+now.Sub(b.at).Seconds()*l.rate >= l.burst {
				delete(l.buckets, name) // full: as good as none
			}
		}
		l.swept = now
	}
	b := l.buckets[principal]
	if b == nil {
		b = &bucket{tokens: l.burst, at: now}
		l.buckets[principal] = b
	}
	b.tokens = min(l.burst, b.tokens+now.Sub(b.at).Seconds()*l.rate)
	b.at = now
	if b.tokens < 1 {
		return time.Duration((1 - b.tokens) / l.rate * float64(time.Second))
	}
	b.tokens--
	return 0
}

// retryAfter is a wait in whole seconds, as the header has it.
func retryAfter(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

// streams counts the open streams.
type streams struct {
	max, maxEach int

	mu   sync.Mutex
	n    int
	each map[string]int
}

func newStreams(limit, each int) *streams {
	return &streams{max: limit, maxEach: each, each: make(map[string]int)}
}

// enter takes a place, and reports false when there is none.
func (s *streams) enter(principal string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n >= s.max || s.each[principal] >= s.maxEach {
		return false
	}
	s.n++
	s.each[principal]++
	return true
}

func (s *streams) leave(principal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n--
	if s.each[principal]--; s.each[principal] == 0 {
		delete(s.each, principal)
	}
}

func (s *streams) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}
