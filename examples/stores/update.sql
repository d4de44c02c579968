-- $1: the token, $2: the row, $3: what to write. No row updated: refused (or there is no such row).
UPDATE invoices
   SET status = $3, fencing_token = $1
 WHERE id = $2 AND fencing_token <= $1
