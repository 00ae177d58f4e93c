-- Findings that are open, worst and newest first (of one host, or of all when `host` is empty).
SELECT
    cluster, host, boot_id, device_id, pci_address, vendor, model, detector, detector_version, mode, code,
    fault_class, severity, secondary, subject_kind, subject_id, dedup_key, title, next_step, value, bound, log_odds,
    opened_at, last_seen_at, observed_at, evidence
FROM finding FINAL
WHERE cleared_at IS NULL
  AND ({host:String} = '' OR host = {host:String})
ORDER BY indexOf(['critical', 'error', 'warning', 'info'], severity), opened_at DESC
LIMIT {limit:UInt64}
