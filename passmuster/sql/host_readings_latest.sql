-- Latest host reading of every host that reported since a time (one host, or all when `host` is empty).
SELECT
    cluster, host, boot_id, observed_at, agent_version, kernel, drivers, uptime_seconds, gpus_expected, gpus_seen,
    services, load_ratio, memory_total_bytes, memory_available_bytes, nic_links, collectors, spool_bytes,
    spool_oldest_seconds, spool_dropped_total, kernel_log_lost_total, clock_steps_total, missing
FROM host_reading_latest FINAL
WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
  AND ({host:String} = '' OR host = {host:String})
ORDER BY cluster, host
