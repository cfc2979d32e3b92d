package a2aqueue

import (
	"container/list"
	"crypto/sha256"
	"fmt"
	"sync"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// sentKey is by what a message is known again: its id, among those of one user and tenant.
type sentKey struct{ user, tenant, message string }

// sent is a message that was sent to the agent, perhaps several times.
type sent struct {
	key      sentKey
	digest   [sha256.Size]byte
	exchange string        // of the first time
	recorded chan struct{} // closed when taskID is known
	ended    chan struct{} // closed when the handling of the first time has ended

	// Written before the channel is closed that says so.
	taskID  protocol.TaskID
	message *protocol.Message // the answer, when it is one

	place *list.Element // among the ended
}

// sentMessages remembers the messages that are being handled, and of those that were the last so many.
type sentMessages struct {
	max int

	mu    sync.Mutex
	byKey map[sentKey]*sent
	order *list.List // of *sent, the ended ones, oldest first
}

func newSentMessages(limit int) *sentMessages {
	return &sentMessages{max: limit, byKey: make(map[sentKey]*sent), order: list.New()}
}

// begin returns what is known of a message, and whether this is the first time that it comes. The first has to end it.
func (m *sentMessages) begin(key sentKey, content []byte, exchange string) (s *sent, first bool, err error) {
	digest := sha256.Sum256(content)
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.byKey[key]; s != nil {
		if s.digest != digest {
			return nil, false, fmt.Errorf("%w: the message id %q was used for another message", protocol.ErrInvalidParams, key.message)
		}
		return s, false, nil
	}
	s = &sent{key: key, digest: digest, exchange: exchange, recorded: make(chan struct{}), ended: make(chan struct{})}
	m.byKey[key] = s
	return s, true, nil
}

// record notes the task that a message has become. Only the first time does so.
func (s *sent) record(id protocol.TaskID) {
	if s.taskID == "" && id != "" {
		s.taskID = id
		close(s.recorded)
	}
}

// maxKeptMessage bounds the parts of an answer that is kept for when the same message comes again.
const maxKeptMessage = 64 << 10

// end notes that the first time is over. A message that has become nothing is forgotten: the next time is the first.
func (m *sentMessages) end(s *sent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(s.ended)
	if s.taskID == "" && s.message == nil {
		delete(m.byKey, s.key)
		return
	}
	s.place = m.order.PushBack(s)
	for m.order.Len() > m.max {
		oldest := m.order.Remove(m.order.Front()).(*sent)
		delete(m.byKey, oldest.key)
	}
}
