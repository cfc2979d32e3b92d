package llmtest

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// dialogue is one request and its answer on the wire. Its file has the sections status (200 if there is none), header (an
// event stream if there is none), body, and request: the request's body, if it is to be compared.
type dialogue struct {
	path    string
	archive *txtar.Archive
	status  int
	header  http.Header
	body    []byte
}

func section(a *txtar.Archive, name string) ([]byte, bool) {
	i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == name })
	if i < 0 {
		return nil, false
	}
	return a.Files[i].Data, true
}

func readDialogue(path string) (*dialogue, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d := &dialogue{path: path, archive: txtar.Parse(data), status: http.StatusOK, header: http.Header{}}
	for _, f := range d.archive.Files {
		if !slices.Contains([]string{"status", "header", "body", "request"}, f.Name) {
			return nil, fmt.Errorf("%s: unknown section %q", path, f.Name)
		}
	}
	if s, ok := section(d.archive, "status"); ok {
		if d.status, err = strconv.Atoi(strings.TrimSpace(string(s))); err != nil {
			return nil, fmt.Errorf("%s: status: %w", path, err)
		}
	}
	if h, ok := section(d.archive, "header"); ok {
		r := textproto.NewReader(bufio.NewReader(bytes.NewReader(append(h, '\n'))))
		mime, err := r.ReadMIMEHeader()
		if err != nil {
			return nil, fmt.Errorf("%s: header: %w", path, err)
		}
		d.header = http.Header(mime)
	}
	if d.header.Get("Content-Type") == "" {
		d.header.Set("Content-Type", "text/event-stream")
	}
	body, ok := section(d.archive, "body")
	if !ok {
		return nil, fmt.Errorf("%s: no section body", path)
	}
	d.body = body
	return d, nil
}

// pieces returns the body in the chunks a server writes: events, or all at once.
func (d *dialogue) pieces() [][]byte {
	if len(d.body) == 0 {
		return nil
	}
	parts := bytes.SplitAfter(d.body, []byte("\n\n"))
	return slices.DeleteFunc(parts, func(p []byte) bool { return len(p) == 0 })
}

// checkRequest compares a request's body with the file's, or writes it there.
func (d *dialogue) checkRequest(t testing.TB, body []byte, update bool) {
	t.Helper()
	want, ok := section(d.archive, "request")
	if !ok {
		return
	}
	got, err := canonical(body)
	if err != nil {
		t.Errorf("the request is not JSON: %v\n%s", err, body)
		return
	}
	if update {
		i := slices.IndexFunc(d.archive.Files, func(f txtar.File) bool { return f.Name == "request" })
		d.archive.Files[i].Data = got
		if err := os.WriteFile(d.path, txtar.Format(d.archive), 0o644); err != nil {
			t.Error(err)
		}
		return
	}
	if !bytes.Equal(got, want) {
		t.Errorf("request differs from %s (run with -update to accept it), got:\n%s\nwant:\n%s", filepath.Base(d.path), got, want)
	}
}

// canonical returns JSON indented, with its keys in order.
func canonical(b []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// readDialogues reads all of a folder, by case name.
func readDialogues(dir string) (map[string]*dialogue, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(paths, cmp.Compare)
	all := make(map[string]*dialogue)
	for _, path := range paths {
		d, err := readDialogue(path)
		if err != nil {
			return nil, err
		}
		all[strings.TrimSuffix(filepath.Base(path), ".txtar")] = d
	}
	return all, nil
}
