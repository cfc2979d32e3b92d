package session

import "sync"

// hub tells subscribers in this process of ephemeral events. A subscriber whose buffer is full misses them.
type hub struct {
	mu   sync.Mutex
	subs map[ID]map[chan *told]struct{}
}

// told is an ephemeral event and its place: behind the durable event of a seq. It is shared by those it is told, and not
// changed: a buffer of events themselves would be 60 KiB for each subscriber.
type told struct {
	Event
	after uint64
}

// ephemeralBuffer is how many ephemeral events a subscriber may lag behind before it misses some.
const ephemeralBuffer = 256

func (h *hub) subscribe(root ID) (<-chan *told, func()) {
	ch := make(chan *told, ephemeralBuffer)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		h.subs = make(map[ID]map[chan *told]struct{})
	}
	if h.subs[root] == nil {
		h.subs[root] = make(map[chan *told]struct{})
	}
	h.subs[root][ch] = struct{}{}
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subs[root], ch)
		if len(h.subs[root]) == 0 {
			delete(h.subs, root)
		}
	}
}

func (h *hub) publish(e told) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.subs[e.SessionID] {
		select {
		case ch <- &e:
		default: // full: ephemeral events may be lost
		}
	}
}
