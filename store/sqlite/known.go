package sqlite

import "orchestrator/session"

// known is what the writer wrote or read last, as it is in its transaction. It can't be out of date, since nobody else
// writes the database; when a transaction is rolled back, and when it has grown too large, it is emptied.
type known struct {
	trees   map[session.ID]treeRow
	records map[recordKey]session.Record
	size    int // about how many bytes it holds
}

type recordKey struct {
	kind session.Kind
	key  string
}

// maxKnown is about how many bytes known may hold.
const maxKnown = 16 << 20

func newKnown() known {
	return known{trees: make(map[session.ID]treeRow), records: make(map[recordKey]session.Record)}
}

func (k *known) keepTree(t treeRow) {
	if _, ok := k.trees[t.ID]; !ok {
		k.grow(200)
	}
	k.trees[t.ID] = t
}

func (k *known) keepRecord(r session.Record) {
	key := recordKey{r.Kind, r.Key}
	k.grow(400 + len(r.Body) - len(k.records[key].Body))
	k.records[key] = r
}

func (k *known) grow(by int) {
	if k.size += by; k.size > maxKnown {
		*k = newKnown()
		k.size = by
	}
}
