-- $1: the resource, $2: the token, $3 and $4: what to append. No row inserted: refused.
WITH admitted AS (
    INSERT INTO fences AS fence (resource, fencing_token)
    VALUES ($1, $2)
    ON CONFLICT (resource) DO UPDATE
       SET fencing_token = EXCLUDED.fencing_token
     WHERE fence.fencing_token <= EXCLUDED.fencing_token
    RETURNING fencing_token
)
INSERT INTO payments (invoice, cents, fencing_token)
SELECT $3, $4, fencing_token FROM admitted
