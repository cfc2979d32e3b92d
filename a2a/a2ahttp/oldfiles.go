package a2ahttp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
)

// oldFiles reads answers of HTTP+JSON in version 0.3 for the SDK, which takes a file's bytes to be base64 of base64, as one
// of the SDKs writes them, and drops the file otherwise; the JavaScript SDK writes them as the protocol says.
type oldFiles struct{ base http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (f oldFiles) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := f.base.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusOK || req.Header.Get("Accept") == eventStream {
		return resp, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(encodeFiles(data)))
	resp.ContentLength = -1
	return resp, nil
}

const fileWithBytes = "fileWithBytes"

// encodeFiles returns JSON in which the bytes of every file are base64 of base64. Bytes that are base64 already can't be told
// from those that were encoded twice, and stay as they are.
func encodeFiles(data []byte) []byte {
	if !bytes.Contains(data, []byte(`"`+fileWithBytes+`"`)) {
		return data
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return data // whoever reads it says what is wrong
	}
	encodeFilesIn(v)
	out, err := json.Marshal(v)
	if err != nil {
		return data
	}
	return out
}

func encodeFilesIn(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			encodeFilesIn(e)
		}
	case map[string]any:
		for name, e := range v {
			if s, ok := e.(string); ok && name == fileWithBytes {
				if once, err := base64.StdEncoding.DecodeString(s); err == nil && !isBase64(once) {
					v[name] = base64.StdEncoding.EncodeToString([]byte(s))
				}
				continue
			}
			encodeFilesIn(e)
		}
	}
}

func isBase64(b []byte) bool {
	_, err := base64.StdEncoding.DecodeString(string(b))
	return err == nil
}
