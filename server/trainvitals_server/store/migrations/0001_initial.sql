-- Every key begins with run_id, so that the tables can be partitioned by it.

CREATE TABLE run (
    run_id        TEXT PRIMARY KEY,
    project       TEXT NOT NULL,
    run_group     TEXT,
    name          TEXT,
    tags          TEXT NOT NULL DEFAULT '[]',      -- JSON
    notes         TEXT NOT NULL DEFAULT '',
    state         TEXT NOT NULL DEFAULT 'running', -- running, finished, interrupted, failed, stopped, stalled, crashed
    created_at    REAL NOT NULL,
    last_seen_at  REAL NOT NULL,
    last_step     INTEGER,
    environment   BLOB NOT NULL,                   -- wire.Environment, msgpack
    stop_reason   TEXT                             -- asked to stop, not yet obeyed
);
CREATE INDEX run_by_age ON run (created_at DESC);

CREATE TABLE session (
    run_id        TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
    rank          INTEGER NOT NULL,
    session_id    TEXT NOT NULL,
    ordinal       INTEGER NOT NULL,
    resume_step   INTEGER,
    late          INTEGER NOT NULL DEFAULT 0,
    started_at    REAL NOT NULL,
    acked_seq     INTEGER NOT NULL DEFAULT 0,      -- kept for ever: a late retry is harmless
    last_step     INTEGER,
    last_seen_at  REAL NOT NULL,
    promised_at   REAL,                            -- when we must have heard from it again
    status        TEXT,                            -- of its Bye; NULL while it lives
    PRIMARY KEY (run_id, rank, session_id)
) WITHOUT ROWID;

CREATE TABLE frame (                               -- as received; compaction turns Steps into blocks and deletes them
    run_id        TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
    rank          INTEGER NOT NULL,
    session_id    TEXT NOT NULL,
    seq           INTEGER NOT NULL,
    kind          TEXT NOT NULL,                   -- layout, steps, event, gap, bye
    first_step    INTEGER,
    count         INTEGER NOT NULL DEFAULT 0,
    received_at   REAL NOT NULL,
    payload       BLOB NOT NULL,
    PRIMARY KEY (run_id, rank, session_id, seq)
) WITHOUT ROWID;

CREATE TABLE block (                               -- one series, one stretch of steps; level 0 is raw, 1.. are buckets
    run_id        TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
    rank          INTEGER NOT NULL,
    session_id    TEXT NOT NULL,
    series        TEXT NOT NULL,
    layout_id     INTEGER NOT NULL DEFAULT 0,      -- 0 for a series without layers
    level         INTEGER NOT NULL,
    first_step    INTEGER NOT NULL,
    last_step     INTEGER NOT NULL,
    count         INTEGER NOT NULL,
    payload       BLOB NOT NULL,
    PRIMARY KEY (run_id, rank, series, session_id, layout_id, level, first_step)
) WITHOUT ROWID;

CREATE TABLE series (                              -- which series a run has: the cap, and the names to offer
    run_id        TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
    name          TEXT NOT NULL,
    per_layer     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, name)
) WITHOUT ROWID;

CREATE TABLE fold (                                -- the detectors' state, never ahead of what is committed
    run_id        TEXT PRIMARY KEY REFERENCES run ON DELETE CASCADE,
    state         BLOB NOT NULL,                   -- RunFold.dump(); knows the state_seq of each of its streams
    streams       TEXT NOT NULL                    -- JSON {"rank/session_id": state_seq}
);

CREATE TABLE incident (
    run_id        TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
    id            TEXT NOT NULL,
    severity      TEXT NOT NULL,
    state         TEXT NOT NULL,
    detected_step INTEGER NOT NULL,
    revision      INTEGER NOT NULL,
    created_at    REAL NOT NULL,
    updated_at    REAL NOT NULL,
    payload       BLOB NOT NULL,                   -- incident.Incident, msgpack
    PRIMARY KEY (run_id, id)
) WITHOUT ROWID;

CREATE TABLE token (
    token_id      TEXT PRIMARY KEY,
    name          TEXT NOT NULL,
    digest        BLOB NOT NULL UNIQUE,            -- SHA-256; the token itself is shown once and not kept
    created_at    REAL NOT NULL,
    last_used_at  REAL,
    revoked_at    REAL
);

CREATE TABLE endpoint (                            -- where alerts go
    endpoint_id   TEXT PRIMARY KEY,
    url           TEXT NOT NULL,
    format        TEXT NOT NULL,                   -- generic, slack, discord
    secret        TEXT NOT NULL,
    min_severity  TEXT NOT NULL DEFAULT 'warning',
    created_at    REAL NOT NULL,
    disabled_at   REAL,
    disabled_why  TEXT
);

CREATE TABLE alert (                               -- one for each incident and endpoint: its identity is the key
    run_id        TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
    incident_id   TEXT NOT NULL,
    endpoint_id   TEXT NOT NULL REFERENCES endpoint ON DELETE CASCADE,
    state         TEXT NOT NULL,                   -- pending, firing, resolved
    severity      TEXT NOT NULL,                   -- as last sent
    updated_at    REAL NOT NULL,
    PRIMARY KEY (run_id, incident_id, endpoint_id)
) WITHOUT ROWID;

CREATE TABLE outbox (                              -- messages to send, written in the transaction of their cause
    message_id    TEXT PRIMARY KEY,                -- the webhook-id: the same on every retry
    endpoint_id   TEXT NOT NULL REFERENCES endpoint ON DELETE CASCADE,
    run_id        TEXT,
    incident_id   TEXT,
    event         TEXT NOT NULL,                   -- incident.opened, incident.escalated, incident.resolved, test
    body          BLOB NOT NULL,
    created_at    REAL NOT NULL,
    next_try_at   REAL,                            -- NULL once delivered or given up
    tries         INTEGER NOT NULL DEFAULT 0,
    outcome       TEXT                             -- delivered, given_up
);
CREATE INDEX outbox_due ON outbox (next_try_at) WHERE next_try_at IS NOT NULL;

CREATE TABLE delivery (                            -- the log: one row for each try
    message_id    TEXT NOT NULL REFERENCES outbox ON DELETE CASCADE,
    try           INTEGER NOT NULL,
    at            REAL NOT NULL,
    status        INTEGER,                         -- HTTP status; NULL where no answer came
    error         TEXT,
    duration_s    REAL NOT NULL,
    PRIMARY KEY (message_id, try)
) WITHOUT ROWID
