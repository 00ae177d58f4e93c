-- How long devices were watched, by vendor and model: GPU-days of telemetry presence. A reading stands for its interval, whatever the device answered; time of which nothing is known is no exposure.
SELECT
    vendor, model,
    sum(interval_seconds) / 86400 AS gpu_days,
    uniq(device_id) AS devices
FROM gpu_reading FINAL
WHERE state != 'unknown'
  AND observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
  AND observed_at < fromUnixTimestamp64Nano({until_at:Int64}, 'UTC')
GROUP BY vendor, model
ORDER BY vendor, model
SETTINGS do_not_merge_across_partitions_select_final = 1
