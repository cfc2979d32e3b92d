package a2a

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxRegistered bounds how many agents may be registered.
const maxRegistered = 100

// Registration is an agent that is added while the product runs. It is called without credentials, and its addresses are
// checked: it may not lead into the operator's own network.
type Registration struct {
	Name string `json:"name"`
	// URL is the agent's base URL, whose well-known path has its card, or the URL of the card itself.
	URL         string `json:"url"`
	Description string `json:"description,omitempty"`
	// By says who registered it, for the operator.
	By string `json:"by,omitempty"`
	// At is when. [Registry.Add] fills it.
	At time.Time `json:"at,omitzero"`
}

// peer returns the registration as a peer.
func (g Registration) peer() (Peer, error) {
	p, _, err := g.checked()
	return p, err
}

// checked is peer, with the field that is wrong.
func (g Registration) checked() (p Peer, field string, err error) {
	p, field, err = Peer{Name: g.Name, Card: g.URL, Description: g.Description, Registered: true}.withDefaults()
	if err != nil && field == "card" {
		return p, "url", fmt.Errorf("the agent's url: %w", err)
	}
	return p, field, err
}

// RegistrationError says that a [Registration] can't be one of an agent, before anything was fetched.
type RegistrationError struct {
	Field string // name or url
	Err   error
}

func (e *RegistrationError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RegistrationError) Unwrap() error { return e.Err }

// ErrListed says that a peer is the operator's, who alone may change it.
var ErrListed = errors.New("the agent is listed in peers.yaml, which only the operator changes")

// Add registers an agent and keeps it, once its card was fetched and can be used. A name of peers.yaml is [ErrListed]; a
// name that is registered for another URL is an error, too. The same again changes the description.
func (r *Registry) Add(ctx context.Context, g Registration) (Info, error) {
	g.Name, g.URL, g.Description = strings.TrimSpace(g.Name), strings.TrimSpace(g.URL), oneLine(g.Description, 1000)
	p, field, err := g.checked()
	if err != nil {
		return Info{}, &RegistrationError{Field: field, Err: err}
	}
	if err := r.mayAdd(p); err != nil {
		return Info{}, err
	}
	e := &entry{peer: p}
	card, err := r.card(ctx, e, true)
	if err != nil {
		return Info{}, err
	}
	if _, err := r.connectEntry(ctx, e); err != nil {
		return Info{}, err
	}
	g.At = time.Now().UTC().Truncate(time.Second)
	err = r.change(func(list []Registration) ([]Registration, error) {
		i := slices.IndexFunc(list, func(o Registration) bool { return o.Name == g.Name })
		switch {
		case i >= 0 && !sameURL(list[i].URL, g.URL):
			return nil, otherURL(g.Name, list[i].URL)
		case i >= 0:
			list[i] = g
		case len(list) >= maxRegistered:
			return nil, fmt.Errorf("%d agents are registered, which is the most there may be; unregister one first", len(list))
		default:
			list = append(list, g)
		}
		return list, nil
	})
	if err != nil {
		return Info{}, err
	}
	if kept, ok := r.find(g.Name); ok {
		kept.mu.Lock()
		kept.card, kept.link, kept.fetched = card, nil, time.Now()
		kept.mu.Unlock()
		e = kept
	}
	return r.info(ctx, e), nil
}

// mayAdd refuses a name that stands for another agent.
func (r *Registry) mayAdd(p Peer) error {
	if e, ok := r.find(p.Name); ok {
		switch {
		case !e.peer.Registered:
			return fmt.Errorf("%w: %q", ErrListed, p.Name)
		case !sameURL(e.peer.Card, p.Card):
			return otherURL(p.Name, e.peer.Card)
		}
	}
	return nil
}

func otherURL(name, url string) error {
	return fmt.Errorf("%q is registered for %s already; unregister it first, or choose another name", name, url)
}

// Remove forgets a registered agent. A peer of peers.yaml is [ErrListed], a name nobody has an *[UnknownPeerError].
func (r *Registry) Remove(_ context.Context, name string) error {
	if _, err := r.Lookup(name); err != nil {
		return err
	}
	if e, ok := r.find(name); ok && !e.peer.Registered {
		return fmt.Errorf("%w: %q", ErrListed, name)
	}
	return r.change(func(list []Registration) ([]Registration, error) {
		return slices.DeleteFunc(list, func(g Registration) bool { return g.Name == name }), nil
	})
}

// Refresh fetches a peer's card again. When that fails, the error says why and an older card is kept.
func (r *Registry) Refresh(ctx context.Context, name string) (Info, error) {
	if _, err := r.Lookup(name); err != nil {
		return Info{}, err
	}
	e, ok := r.find(name)
	if !ok {
		return Info{}, &UnknownPeerError{Name: name}
	}
	fresh := &entry{peer: e.peer}
	card, err := r.card(ctx, fresh, true)
	if err == nil && fresh.assumed != "" {
		err = errors.New(fresh.assumed)
	}
	if err != nil {
		return Info{}, err
	}
	e.mu.Lock()
	e.card, e.assumed, e.link, e.fetched = card, "", nil, time.Now()
	e.mu.Unlock()
	return r.info(ctx, e), nil
}

// registeredFile keeps the registrations. It is read again when it has changed, since another process may have written
// it; writers take turns by a lock on a file beside it.
type registeredFile struct {
	path string // empty: they are kept in memory only

	mu      sync.Mutex
	looked  time.Time
	stamp   fileStamp
	writes  int // of this process
	current []Registration
}

// fileStamp tells one content of the file from another.
type fileStamp struct {
	mod  time.Time
	size int64
}

// lookAgain is how often the file is looked at.
const lookAgain = time.Second

// maxRegisteredFile bounds the file, in bytes.
const maxRegisteredFile = 1 << 20

// load looks at the file, once a second or at once with anew, and reports whether the registrations are others than those
// that were loaded last.
func (f *registeredFile) load(anew bool) (changed bool, err error) {
	f.mu.Lock()
	now := time.Now()
	if f.path == "" || !anew && now.Sub(f.looked) < lookAgain && !now.Before(f.looked) {
		f.mu.Unlock()
		return false, nil
	}
	f.looked = now
	before, writes := f.stamp, f.writes
	f.mu.Unlock()

	stamp, err := stampOf(f.path)
	if err != nil || stamp == before {
		return false, err
	}
	list, err := readRegistered(f.path)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writes != writes {
		return false, nil // what was read is older than what was written meanwhile
	}
	f.stamp = stamp // what can't be read is reported once
	if err != nil {
		return false, err
	}
	f.current = list
	return true, nil
}

// list returns the registrations as they were last loaded or written.
func (f *registeredFile) list() []Registration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

func stampOf(path string) (fileStamp, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fileStamp{}, nil
	}
	if err != nil {
		return fileStamp{}, fmt.Errorf("look at the registered agents: %w", err)
	}
	return fileStamp{mod: info.ModTime(), size: info.Size()}, nil
}

// registeredJSON is the file.
type registeredJSON struct {
	Version int            `json:"version"`
	Peers   []Registration `json:"peers"`
}

// readRegistered reads the file; one that doesn't exist has no agents.
func readRegistered(path string) ([]Registration, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the registered agents: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxRegisteredFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the registered agents: %w", err)
	}
	list, err := parseRegistered(data)
	if err != nil {
		return nil, fmt.Errorf("the registered agents in %s can't be read: %w", path, err)
	}
	return list, nil
}

// parseRegistered reads the text of the file.
func parseRegistered(data []byte) ([]Registration, error) {
	if len(data) > maxRegisteredFile {
		return nil, fmt.Errorf("the file is larger than %d bytes", maxRegisteredFile)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var f registeredJSON
	if err := dec.Decode(&f); err != nil {
		return nil, err
	}
	switch {
	case f.Version != 1:
		return nil, fmt.Errorf("it is of version %d, and only 1 is known", f.Version)
	case len(f.Peers) > maxRegistered:
		return nil, fmt.Errorf("it has %d agents, and %d are allowed", len(f.Peers), maxRegistered)
	}
	for i, g := range f.Peers {
		if _, err := g.peer(); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(f.Peers[:i], func(o Registration) bool { return o.Name == g.Name }) {
			return nil, fmt.Errorf("it has two agents named %q", g.Name)
		}
	}
	return f.Peers, nil
}

// update changes the file: edit gets what it holds now, whoever wrote it. The new file takes the place of the old one in
// one step.
func (f *registeredFile) update(edit func([]Registration) ([]Registration, error)) error {
	if f.path == "" {
		f.mu.Lock()
		defer f.mu.Unlock()
		list, err := edit(slices.Clone(f.current))
		if err == nil {
			f.current = list
		}
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return fmt.Errorf("keep the registered agents: %w", err)
	}
	lock, err := os.OpenFile(f.path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("keep the registered agents: %w", err)
	}
	defer lock.Close() // gives the lock back
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	list, err := readRegistered(f.path)
	if err != nil {
		return err
	}
	if list, err = edit(list); err != nil {
		return err
	}
	if err := writeRegistered(f.path, list); err != nil {
		return fmt.Errorf("keep the registered agents: %w", err)
	}
	stamp, err := stampOf(f.path)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current, f.stamp, f.looked = list, stamp, time.Now()
	f.writes++
	return nil
}

// writeRegistered writes the file anew and puts it in the old one's place.
func writeRegistered(path string, list []Registration) error {
	data, err := json.MarshalIndent(registeredJSON{Version: 1, Peers: list}, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(append(data, '\n'))
	if err == nil {
		err = tmp.Sync()
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
