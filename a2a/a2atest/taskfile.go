package a2atest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv/taskstore"
)

// caller is the user that every caller of a peer is, unless the peer is anonymous.
const caller = "caller"

// taskFile is a task store that survives the process: each version of a task is a line of a file.
type taskFile struct {
	*taskstore.InMemory

	mu   sync.Mutex
	file *os.File
}

var _ taskstore.Store = (*taskFile)(nil)

// openTaskFile reads what a file holds, and returns the tasks that are not over.
func openTaskFile(path, user string) (*taskFile, []*protocol.Task, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open a task file: %w", err)
	}
	s := &taskFile{file: f, InMemory: taskstore.NewInMemory(&taskstore.InMemoryStoreConfig{
		Authenticator: func(context.Context) (string, error) { return user, nil },
	})}
	var ids []protocol.TaskID
	last := make(map[protocol.TaskID]*protocol.Task)
	var whole int64
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var task protocol.Task
		if json.Unmarshal(lines.Bytes(), &task) != nil {
			break // the process died in the middle of this line
		}
		whole += int64(len(lines.Bytes())) + 1
		if last[task.ID] == nil {
			ids = append(ids, task.ID)
		}
		last[task.ID] = &task
	}
	if err := cmp.Or(lines.Err(), f.Truncate(whole)); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("read task file %s: %w", path, err)
	}
	var open []*protocol.Task
	for _, id := range ids {
		if _, err := s.InMemory.Create(context.Background(), last[id]); err != nil {
			f.Close()
			return nil, nil, fmt.Errorf("task file %s: task %s: %w", path, id, err)
		}
		if !last[id].Status.State.Terminal() {
			open = append(open, last[id])
		}
	}
	return s, open, nil
}

func (s *taskFile) write(task *protocol.Task) error {
	line, err := json.Marshal(task)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err = s.file.Write(append(line, '\n'))
	return err
}

// Create implements taskstore.Store.
func (s *taskFile) Create(ctx context.Context, task *protocol.Task) (taskstore.TaskVersion, error) {
	v, err := s.InMemory.Create(ctx, task)
	if err == nil {
		err = s.write(task)
	}
	return v, err
}

// Update implements taskstore.Store.
func (s *taskFile) Update(ctx context.Context, req *taskstore.UpdateRequest) (taskstore.TaskVersion, error) {
	v, err := s.InMemory.Update(ctx, req)
	if err == nil {
		err = s.write(req.Task)
	}
	return v, err
}

// complete ends a task that an earlier process began.
func (s *taskFile) complete(task *protocol.Task, answer string) error {
	stored, err := s.Get(context.Background(), task.ID)
	if err != nil {
		return err
	}
	done, now := *stored.Task, time.Now().UTC()
	message := protocol.NewMessageForTask(protocol.MessageRoleAgent, &done, protocol.NewTextPart(answer))
	done.Status = protocol.TaskStatus{State: protocol.TaskStateCompleted, Message: message, Timestamp: &now}
	_, err = s.Update(context.Background(), &taskstore.UpdateRequest{Task: &done, PrevVersion: stored.Version})
	return err
}
