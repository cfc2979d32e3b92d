package session

import "sync"

// hub tells subscribers in this process of ephemeral events. A subscriber whose buffer is full misses them.
type hub struct {
	mu   sync.Mutex
	subs map[ID]map[chan Event]struct{}
}

// ephemeralBuffer is how many ephemeral events a subscriber may lag behind before it misses some.
const ephemeralBuffer = 256

func (h *hub) subscribe(root ID) (<-chan Event, func()) {
	ch := make(chan Event, ephemeralBuffer)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		h.subs = make(map[ID]map[chan Event]struct{})
	}
	if h.subs[root] == nil {
		h.subs[root] = make(map[chan Event]struct{})
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

func (h *hub) publish(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.subs[e.SessionID] {
		select {
		case ch <- e:
		default: // full: ephemeral events may be lost
		}
	}
}
