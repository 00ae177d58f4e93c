-- The fleet at a glance: hosts and devices by vendor and model, and how many devices are in which state; a device whose last reading is older than `silent_after_seconds` counts as silent only.
SELECT
    vendor, model,
    uniqExact(cluster, host) AS hosts,
    count() AS devices,
    countIf(NOT silent AND state = 'ok') AS ok,
    countIf(NOT silent AND state = 'lost') AS lost,
    countIf(NOT silent AND state = 'hung') AS hung,
    countIf(NOT silent AND state = 'unreadable') AS unreadable,
    countIf(NOT silent AND state = 'unknown') AS unknown,
    countIf(silent) AS silent,
    max(last_at) AS newest_at,
    min(last_at) AS oldest_at,
    avgIf(power_watts, NOT silent) AS power_watts,
    avgIf(activity, NOT silent) AS activity_compute_ratio
FROM
(
    SELECT
        cluster, host, device_id, last_at,
        {now_at:Int64} - toUnixTimestamp64Nano(last_at) > {silent_after_seconds:Float64} * 1e9 AS silent,
        tupleElement(last, 1) AS vendor,
        tupleElement(last, 2) AS model,
        tupleElement(last, 3) AS state,
        tupleElement(last, 4) AS power_watts,
        tupleElement(last, 5) AS activity
    FROM
    (
        SELECT
            cluster, host, device_id, max(observed_at) AS last_at,
            argMax(tuple(vendor, model, state, power_watts, activity_compute_ratio), observed_at) AS last
        FROM gpu_reading
        WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
        GROUP BY cluster, host, device_id
    )
)
GROUP BY vendor, model
ORDER BY devices DESC, vendor, model
