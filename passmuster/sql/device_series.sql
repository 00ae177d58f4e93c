-- One host's devices over time, in buckets of `bucket_seconds`: power, temperatures, clocks, activity, memory, error counters.
SELECT
    device_id,
    fromUnixTimestamp64Nano(intDiv(toUnixTimestamp64Nano(observed_at), {bucket_seconds:Int64} * 1000000000)
        * {bucket_seconds:Int64} * 1000000000, 'UTC') AS at,
    argMax(tuple(`index`), observed_at).1 AS `index`,
    avg(power_watts) AS power_watts,
    max(coalesce(power_max_watts, power_watts)) AS power_max_watts,
    max(coalesce(temperature_hotspot_max_celsius, temperature_hotspot_celsius, temperature_core_max_celsius, temperature_core_celsius)) AS temperature_celsius,
    max(coalesce(temperature_memory_max_celsius, temperature_memory_celsius)) AS temperature_memory_celsius,
    avg(clock_graphics_hertz) AS clock_graphics_hertz,
    min(coalesce(clock_graphics_min_hertz, clock_graphics_hertz)) AS clock_graphics_min_hertz,
    avg(activity_compute_ratio) AS activity_compute_ratio,
    max(memory_used_bytes) AS memory_used_bytes,
    max(ecc_corrected_total) AS ecc_corrected_total,
    max(ecc_uncorrected_total) AS ecc_uncorrected_total,
    min(links_up) AS links_up,
    min(pcie_width) AS pcie_width,
    countIf(state != 'ok') AS not_ok,
    count() AS readings
FROM gpu_reading FINAL
WHERE cluster = {cluster:String} AND host = {host:String}
  AND observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
  AND observed_at < fromUnixTimestamp64Nano({until_at:Int64}, 'UTC')
GROUP BY device_id, at
ORDER BY device_id, at
SETTINGS do_not_merge_across_partitions_select_final = 1
