-- Findings that were open at some time since a time, with when they cleared, newest first (one host, or all when empty).
SELECT
    cluster, host, boot_id, device_id, pci_address, vendor, model, detector, detector_version, mode, code,
    fault_class, severity, secondary, subject_kind, subject_id, dedup_key, title, next_step, value, bound, log_odds,
    opened_at, last_seen_at, cleared_at, observed_at, evidence
FROM finding FINAL
WHERE (cleared_at IS NULL OR cleared_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC'))
  AND ({host:String} = '' OR host = {host:String})
ORDER BY opened_at DESC
LIMIT {limit:UInt64}
