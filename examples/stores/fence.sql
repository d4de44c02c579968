-- $1: the resource, $2: the token. First in the transaction. No row returned: refused, roll back.
INSERT INTO fences AS fence (resource, fencing_token)
VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE
   SET fencing_token = EXCLUDED.fencing_token
 WHERE fence.fencing_token <= EXCLUDED.fencing_token
RETURNING fencing_token
