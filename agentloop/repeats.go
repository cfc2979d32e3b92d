package agentloop

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	"orchestrator/session"
)

// repeats counts the failures of identical calls with identical results in one turn. It is not safe for concurrent use.
type repeats struct {
	counts map[[sha256.Size]byte]repeated
}

type repeated struct {
	n       int
	message uint64 // that asked for the last one counted
}

// repeatNote begins the note that a repeated failure's result carries.
const repeatNote = "\n\n[this call has now failed "

func noteFor(n int) string {
	return fmt.Sprintf("%s%d times in this turn with the same arguments and the same result; change something or go on without it]", repeatNote, n)
}

// repeatKey identifies a failed call. The content may be as shown to the model: a note, and the key of the artifact that
// holds the whole, are no difference.
func repeatKey(id session.ToolCallID, name string, args json.RawMessage, content string) [sha256.Size]byte {
	if i := strings.LastIndex(content, repeatNote); i >= 0 {
		content = content[:i]
	}
	content = strings.ReplaceAll(content, string(resultKey(id)), "")
	return sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", name, args, content))
}

// peek returns which failure one more would be, asked for by the message with the seq.
func (r *repeats) peek(key [sha256.Size]byte, message uint64) int {
	got := r.counts[key]
	if got.n > 0 && got.message == message {
		return got.n
	}
	return got.n + 1
}

// add counts a failure.
func (r *repeats) add(key [sha256.Size]byte, message uint64) {
	if r.counts == nil {
		r.counts = make(map[[sha256.Size]byte]repeated)
	}
	r.counts[key] = repeated{n: r.peek(key, message), message: message}
}

// worst returns the highest count.
func (r *repeats) worst() int {
	worst := 0
	for _, got := range r.counts {
		worst = max(worst, got.n)
	}
	return worst
}
