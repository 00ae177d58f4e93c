-- Latest state of every check of one host (or of all when `host` is empty).
SELECT
    cluster, host, subject_kind, subject_id, `check`, check_version, state, since_at, observed_at, reason, value, bound
FROM check_state FINAL
WHERE ({host:String} = '' OR host = {host:String})
ORDER BY cluster, host, subject_kind, subject_id, `check`, since_at DESC
LIMIT 1 BY cluster, host, subject_kind, subject_id, `check`
