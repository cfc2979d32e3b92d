package session

// StopWithoutRelease ends a Manager as a crash would: its leases stay until they run out.
func StopWithoutRelease(m *Manager) {
	m.mu.Lock()
	m.stopped = true
	clear(m.trees)
	m.mu.Unlock()
	m.cancel(ErrStopping)
	m.wg.Wait()
}
