-- Facts of the quarantine ledger since a time, newest first (of one host, or of all when `host` is empty).
SELECT
    cluster, host, device_id, event_id, hold_id, kind, actor, reason, `check`, fault_class, value, bound, observed_at,
    expires_at, releases_when, policy_hash, evidence
FROM hold_event FINAL
WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
  AND ({host:String} = '' OR host = {host:String})
ORDER BY observed_at DESC
LIMIT {limit:UInt64}
