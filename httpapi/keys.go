package httpapi

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Key is an API key as it is kept: what it is good for, and its hash.
type Key struct {
	ID        string     `json:"id"`
	Principal string     `json:"principal"` // whose sessions it opens
	Note      string     `json:"note,omitempty"`
	Created   time.Time  `json:"created"`
	Revoked   *time.Time `json:"revoked,omitempty"`
	// Hash is the SHA-256 of the key in hexadecimal. A key is 256 random bits, so that a slow hash would add nothing.
	Hash string `json:"hash,omitempty"`
}

// Keys are the API keys in a file, which is read again when it has changed: what another process writes holds within a
// second.
type Keys struct {
	path string
	log  *slog.Logger

	mu     sync.Mutex
	looked time.Time
	seen   fileState
	byID   map[string]Key
}

type fileState struct {
	modified time.Time
	size     int64
	inode    uint64
}

// keysFile is the file's content.
type keysFile struct {
	Keys []Key `json:"keys"`
}

// keyPrefix begins every key, so that scanners of leaked secrets can tell them.
const keyPrefix = "ork_"

var principalName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// The errors of [Keys] a caller can do something about.
var (
	ErrNoKey  = errors.New("there is no such key")
	ErrBadKey = errors.New("there can be no such key")
)

// OpenKeys returns the keys in a file, which need not exist. A nil logger logs nothing.
func OpenKeys(path string, log *slog.Logger) (*Keys, error) {
	k := &Keys{path: path, log: cmp.Or(log, slog.New(slog.DiscardHandler)), byID: map[string]Key{}}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k, k.reloadLocked()
}

// Path returns the file's path.
func (k *Keys) Path() string { return k.path }

// Verify returns the key that a secret is, and whether there is one that isn't revoked.
func (k *Keys) Verify(secret string) (Key, bool) {
	id, ok := keyID(secret)
	if !ok {
		return Key{}, false
	}
	key, ok := k.get(id)
	sum := sha256.Sum256([]byte(secret))
	want, err := hex.DecodeString(key.Hash)
	if !ok || err != nil || subtle.ConstantTimeCompare(sum[:], want) != 1 {
		return Key{}, false
	}
	return key, key.Revoked == nil
}

// Valid reports whether the key of an id isn't revoked.
func (k *Keys) Valid(id string) bool {
	key, ok := k.get(id)
	return ok && key.Revoked == nil
}

func (k *Keys) get(id string) (Key, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.looked) > time.Second {
		if err := k.reloadLocked(); err != nil {
			k.log.Error("API keys not read anew; those read before hold", "err", err)
		}
	}
	key, ok := k.byID[id]
	return key, ok
}

// List returns all keys, the earliest first, revoked ones too.
func (k *Keys) List() ([]Key, error) {
	file, err := k.read()
	return file.Keys, err
}

// Create makes a key for a principal and returns it with its secret, which is kept nowhere.
func (k *Keys) Create(principal, note string) (secret string, key Key, err error) {
	if !principalName.MatchString(principal) {
		return "", Key{}, fmt.Errorf("%w: a principal is letters, digits and ._@-, 64 at most, not %q", ErrBadKey, principal)
	}
	if len(note) > 200 {
		return "", Key{}, fmt.Errorf("%w: the note has more than 200 bytes", ErrBadKey)
	}
	var id [5]byte
	var random [32]byte
	_, _ = rand.Read(id[:]) // never fails
	_, _ = rand.Read(random[:])
	key = Key{ID: "k" + hex.EncodeToString(id[:]), Principal: principal, Note: note, Created: time.Now().UTC().Truncate(time.Second)}
	secret = keyPrefix + key.ID + "_" + base64.RawURLEncoding.EncodeToString(random[:])
	sum := sha256.Sum256([]byte(secret))
	key.Hash = hex.EncodeToString(sum[:])
	return secret, key, k.change(func(f *keysFile) error {
		f.Keys = append(f.Keys, key)
		return nil
	})
}

// Revoke makes a key worth nothing. Revoking twice is a no-op.
func (k *Keys) Revoke(id string) (Key, error) {
	var key Key
	err := k.change(func(f *keysFile) error {
		i := slices.IndexFunc(f.Keys, func(key Key) bool { return key.ID == id })
		if i < 0 {
			return fmt.Errorf("key %q: %w", id, ErrNoKey)
		}
		if f.Keys[i].Revoked == nil {
			f.Keys[i].Revoked = new(time.Now().UTC().Truncate(time.Second))
		}
		key = f.Keys[i]
		return nil
	})
	return key, err
}

// keyID returns the id in a key's text.
func keyID(secret string) (string, bool) {
	rest, ok := strings.CutPrefix(secret, keyPrefix)
	if !ok || len(secret) > 200 {
		return "", false
	}
	id, random, ok := strings.Cut(rest, "_")
	return id, ok && id != "" && random != ""
}

func (k *Keys) read() (keysFile, error) {
	var file keysFile
	data, err := os.ReadFile(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		return file, nil
	}
	if err != nil {
		return file, fmt.Errorf("read the API keys: %w", err)
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return file, fmt.Errorf("read the API keys in %s: %w", k.path, err)
	}
	return file, nil
}

func (k *Keys) reloadLocked() error {
	k.looked = time.Now()
	state, err := stateOf(k.path)
	if err != nil {
		return err
	}
	if state == k.seen {
		return nil
	}
	file, err := k.read()
	if err != nil {
		return err
	}
	k.seen = state
	clear(k.byID)
	for _, key := range file.Keys {
		k.byID[key.ID] = key
	}
	return nil
}

func stateOf(path string) (fileState, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fileState{}, nil
	}
	if err != nil {
		return fileState{}, fmt.Errorf("look at the API keys: %w", err)
	}
	s := fileState{modified: info.ModTime(), size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = sys.Ino
	}
	return s, nil
}

// change writes the file anew, one process at a time; it is never there in part.
func (k *Keys) change(edit func(*keysFile) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(k.path), 0o700); err != nil {
		return fmt.Errorf("write the API keys: %w", err)
	}
	lock, err := os.OpenFile(k.path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("write the API keys: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // closing gives the lock back
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock the API keys: %w", err)
	}
	file, err := k.read()
	if err != nil {
		return err
	}
	if err := edit(&file); err != nil {
		return err
	}
	data, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	if err := replaceFile(k.path, append(data, '\n')); err != nil {
		return fmt.Errorf("write the API keys: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reloadLocked()
}

func replaceFile(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // readable by its owner alone
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
