# What a job run by `quorlock run` does with its token. Ends with 1 if a newer run has written.
written=$(psql -XAtq -v ON_ERROR_STOP=1 -v token="${QUORLOCK_FENCING_TOKEN:?run me under quorlock run}" <<'SQL'
UPDATE invoices
   SET status = 'paid', fencing_token = :token
 WHERE id = 42 AND fencing_token <= :token
RETURNING 1
SQL
) || exit
[ "$written" = 1 ] || { echo 'refused: a newer run has written' >&2; exit 1; }
