package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// lock is the right to be the one process that writes a database. The kernel takes it back when the process dies, so the
// file may stay.
type lock struct{ file *os.File }

// takeLock takes the lock of the database at path, or returns a *[LockedError].
func takeLock(path string) (*lock, error) {
	file, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, &PathError{Path: path, Err: err}
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer file.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &PathError{Path: path, Err: fmt.Errorf("lock %s: %w", file.Name(), err)}
		}
		text, _ := io.ReadAll(io.LimitReader(file, 20)) // what can't be read names nobody
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return nil, &LockedError{Path: path, PID: pid}
	}
	l := &lock{file: file}
	if err := l.write(strconv.Itoa(os.Getpid()) + "\n"); err != nil {
		return nil, &PathError{Path: path, Err: errors.Join(err, file.Close())}
	}
	return l, nil
}

func (l *lock) write(text string) error {
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err := l.file.WriteAt([]byte(text), 0)
	return err
}

// release gives the lock back. The file stays: removing it could take it from under a process that is just opening it.
func (l *lock) release() error { return errors.Join(l.write(""), l.file.Close()) }
