-- Before a row is read to be written back changed. $1: the token, $2: the row. No row returned: refused (or there is no such row).
UPDATE invoices
   SET fencing_token = $1
 WHERE id = $2 AND fencing_token <= $1
RETURNING status
