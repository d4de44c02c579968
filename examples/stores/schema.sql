-- Each thing that is protected keeps the token of its last writer. In a table that is there already:
--     ALTER TABLE invoices ADD COLUMN fencing_token BIGINT NOT NULL DEFAULT 0;
-- 0 is never a token, and smaller than all of them.
CREATE TABLE invoices (
    id            BIGINT PRIMARY KEY,
    status        TEXT   NOT NULL,
    fencing_token BIGINT NOT NULL DEFAULT 0
);

-- For writes that are more than one row: one row per locked resource. Rows of this table are never deleted.
CREATE TABLE fences (
    resource      TEXT   PRIMARY KEY,
    fencing_token BIGINT NOT NULL
);

-- A table that is only appended to. Its column says who wrote, and checks nothing.
CREATE TABLE payments (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    invoice       BIGINT NOT NULL,
    cents         BIGINT NOT NULL,
    fencing_token BIGINT NOT NULL
);
