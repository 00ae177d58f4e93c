-- Fault events last said since a time, newest first (of one host, or of all when `host` is empty).
SELECT
    cluster, host, boot_id, device_id, pci_address, vendor, model, source, kind, code, block, fault_class, severity,
    blame, secondary, count, first_at, last_at, observed_at, text, trust, link, pid, process
FROM fault_event FINAL
WHERE last_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
  AND ({host:String} = '' OR host = {host:String})
ORDER BY last_at DESC
LIMIT {limit:UInt64}
