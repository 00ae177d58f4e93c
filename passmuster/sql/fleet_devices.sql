-- Latest reading of every device that reported since a time (of one host, or of all when `host` is empty); `silent_seconds` is its age at `now_at`.
SELECT
    cluster, host, device_id, boot_id, observed_at,
    ({now_at:Int64} - toUnixTimestamp64Nano(observed_at)) / 1e9 AS silent_seconds,
    vendor, model, pci_address, `index`, `partition`, state, power_watts, power_limit_watts,
    coalesce(temperature_hotspot_celsius, temperature_core_celsius, temperature_edge_celsius) AS temperature_celsius,
    temperature_memory_celsius, clock_graphics_hertz, clock_graphics_limit_hertz, activity_compute_ratio,
    memory_used_bytes, memory_total_bytes, ecc_corrected_total, ecc_uncorrected_total, recovery_action, links_up,
    links_total, pcie_generation, pcie_width, processes, missing
FROM gpu_reading_latest FINAL
WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
  AND ({host:String} = '' OR host = {host:String})
ORDER BY cluster, host, `index`, device_id
