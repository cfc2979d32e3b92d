package builtin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"orchestrator/session"
	"orchestrator/tool"
)

// maxPage is the most bytes one call of read_artifact returns. A call that names no limit gets session.InlineBudget.
const maxPage = 32_000

type readArtifact struct{ store session.Store }

var _ tool.Tool = (*readArtifact)(nil)

// Spec implements [tool.Tool].
func (*readArtifact) Spec() tool.Spec {
	return tool.Spec{
		Name:   "read_artifact",
		Source: tool.SourceBuiltin,
		Description: describe("Reads an artifact of this session by its key: a long result of an agent, or a file. " +
			"Returns a page of it, says how many bytes there are in all and at which offset the next page begins."),
		Schema: json.RawMessage(fmt.Sprintf(`{
			"type": "object",
			"properties": {
				"key": {"type": "string", "minLength": 1, "description": "The artifact's key, as a result named it."},
				"offset": {"type": "integer", "minimum": 0, "description": "The byte to begin at. Defaults to 0."},
				"limit": {"type": "integer", "minimum": 1, "maximum": %d, "description": "The most bytes to return. Defaults to %d."}
			},
			"required": ["key"],
			"additionalProperties": false
		}`, maxPage, session.InlineBudget)),
		Repeatable: true,
	}
}

// Run implements [tool.Tool]. Artifacts of another tree don't exist for it.
func (r *readArtifact) Run(ctx context.Context, c *tool.Call) (tool.Result, error) {
	var args struct {
		Key    session.ArtifactKey `json:"key"`
		Offset int                 `json:"offset"`
		Limit  int                 `json:"limit"`
	}
	if err := decodeArgs(c, &args); err != nil {
		return tool.Failure(err.Error()), nil
	}
	a, err := r.store.Artifact(ctx, c.Turn.Root, args.Key)
	if errors.Is(err, session.ErrNotFound) {
		return tool.Failure(fmt.Sprintf("this session has no artifact %q; use a key exactly as a result named it", args.Key)), nil
	}
	if err != nil {
		return tool.Result{}, fmt.Errorf("read artifact %s: %w", args.Key, err)
	}
	about, total := label(a), len(a.Data)
	switch {
	case total == 0:
		return tool.Text(about + " is empty."), nil
	case !utf8.Valid(a.Data) || bytes.IndexByte(a.Data, 0) >= 0:
		return tool.Text(fmt.Sprintf("%s is binary data of %d bytes, which can't be shown as text.", about, total)), nil
	case args.Offset < 0 || args.Offset >= total:
		return tool.Failure(fmt.Sprintf("%s has %d bytes; there is nothing at offset %d", about, total, args.Offset)), nil
	}
	begin, end := page(a.Data, args.Offset, cmp.Or(min(max(args.Limit, 0), maxPage), session.InlineBudget))
	head := fmt.Sprintf("%s, bytes %d to %d of %d.", about, begin, end, total)
	if end < total {
		head += fmt.Sprintf(" The next page begins at offset %d.", end)
	} else {
		head += " This is its end."
	}
	return tool.Text(head + "\n" + session.AsData("artifact "+string(a.Key), string(a.Data[begin:end]))), nil
}

// page returns the bounds of a page of valid UTF-8 that cuts no character in two and holds at least one.
func page(data []byte, begin, limit int) (int, int) {
	for !utf8.RuneStart(data[begin]) {
		begin--
	}
	end := min(begin+limit, len(data))
	for end < len(data) && !utf8.RuneStart(data[end]) {
		end--
	}
	if end == begin {
		_, size := utf8.DecodeRune(data[begin:])
		end += size
	}
	return begin, end
}

func label(a session.Artifact) string {
	text := "Artifact " + string(a.Key)
	switch {
	case a.Name != "" && a.MediaType != "":
		text += fmt.Sprintf(" (%q, %s)", a.Name, a.MediaType)
	case a.Name != "":
		text += fmt.Sprintf(" (%q)", a.Name)
	case a.MediaType != "":
		text += fmt.Sprintf(" (%s)", a.MediaType)
	}
	return text
}
