package session

import "sync"

// Wakes is the part of a [Store] behind [Store.Watch]. Its zero value is ready to use.
type Wakes struct {
	mu       sync.Mutex
	watchers map[ID]map[chan struct{}]struct{}
}

// Watch implements [Store].
func (w *Wakes) Watch(tree ID) (<-chan struct{}, func()) {
	wake := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watchers == nil {
		w.watchers = make(map[ID]map[chan struct{}]struct{})
	}
	if w.watchers[tree] == nil {
		w.watchers[tree] = make(map[chan struct{}]struct{})
	}
	w.watchers[tree][wake] = struct{}{}
	return wake, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.watchers[tree], wake)
		if len(w.watchers[tree]) == 0 {
			delete(w.watchers, tree)
		}
	}
}

// Watched reports whether anybody watches the tree itself.
func (w *Wakes) Watched(tree ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.watchers[tree]) > 0
}

// Wake wakes those who watch the tree or all trees. It doesn't block.
func (w *Wakes) Wake(tree ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakeLocked(tree)
	w.wakeLocked("")
}

// WakeAll wakes everybody: the store has closed. It doesn't block.
func (w *Wakes) WakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for tree := range w.watchers {
		w.wakeLocked(tree)
	}
}

func (w *Wakes) wakeLocked(tree ID) {
	for wake := range w.watchers[tree] {
		select {
		case wake <- struct{}{}:
		default: // it has a wake it hasn't taken yet
		}
	}
}
