-- The fleet at a glance: hosts and devices by vendor and model, and how many devices are in which state; a device whose last reading is older than `silent_after_seconds` counts as silent only.
SELECT
    vendor, model,
    uniqExact(cluster, host) AS hosts,
    count() AS devices,
    countIf(fresh AND state = 'ok') AS ok,
    countIf(fresh AND state = 'lost') AS lost,
    countIf(fresh AND state = 'hung') AS hung,
    countIf(fresh AND state = 'unreadable') AS unreadable,
    countIf(fresh AND state = 'unknown') AS unknown,
    countIf(NOT fresh) AS silent,
    max(observed_at) AS newest_at,
    min(observed_at) AS oldest_at,
    avgOrNullIf(power_watts, fresh) AS power_watts,
    avgOrNullIf(activity_compute_ratio, fresh) AS activity_compute_ratio
FROM
(
    SELECT
        cluster, host, vendor, model, state, observed_at, power_watts, activity_compute_ratio,
        {now_at:Int64} - toUnixTimestamp64Nano(observed_at) <= {silent_after_seconds:Float64} * 1e9 AS fresh
    FROM gpu_reading_latest FINAL
    WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
)
GROUP BY vendor, model
ORDER BY devices DESC, vendor, model
