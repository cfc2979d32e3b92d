-- +goose Up
PRAGMA application_id = 1869767528;

-- A tree that was deleted has no id until what it held is gone.
CREATE TABLE trees (
	n           INTEGER PRIMARY KEY AUTOINCREMENT,
	id          TEXT UNIQUE,
	created     INTEGER NOT NULL,
	owner       TEXT NOT NULL,
	epoch       INTEGER NOT NULL,
	lease_until INTEGER NOT NULL,
	crashed     INTEGER NOT NULL
) STRICT;

-- pos is the tree's n * 2^32 + seq, so that a tree's events lie together in their order; the last one's is the
-- tree's head. Times are in nanoseconds
-- since 1970, 0 for none.
CREATE TABLE events (
	pos        INTEGER PRIMARY KEY,
	id         TEXT NOT NULL,
	type       TEXT NOT NULL,
	time       INTEGER NOT NULL,
	agent      TEXT NOT NULL,
	parent     TEXT NOT NULL,
	turn       TEXT NOT NULL,
	origin     TEXT NOT NULL,
	tool_call  TEXT NOT NULL,
	data       TEXT
) STRICT;
CREATE INDEX events_by_agent ON events (agent, type);

CREATE TABLE records (
	n      INTEGER PRIMARY KEY,
	tree   TEXT NOT NULL REFERENCES trees (id),
	kind   TEXT NOT NULL,
	key    TEXT NOT NULL,
	owner  TEXT NOT NULL,
	origin TEXT NOT NULL,
	state  TEXT NOT NULL,
	body   TEXT,
	due    INTEGER,
	rev    INTEGER NOT NULL,
	UNIQUE (kind, key)
) STRICT;
CREATE INDEX records_by_tree ON records (tree, kind);
CREATE INDEX records_by_state ON records (kind, state, tree);
CREATE INDEX records_by_due ON records (due) WHERE due IS NOT NULL;

CREATE TABLE artifacts (
	tree       INTEGER NOT NULL REFERENCES trees (n),
	key        TEXT NOT NULL,
	name       TEXT NOT NULL,
	media_type TEXT NOT NULL,
	size       INTEGER NOT NULL,
	data       BLOB,
	PRIMARY KEY (tree, key)
) STRICT;
