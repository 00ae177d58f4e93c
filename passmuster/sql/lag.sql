-- Time from observation to store, by record kind, of what was stored since a time: median, 99th percentile, maximum in seconds.
SELECT
    kind, count() AS rows, max(ingested_at) AS newest_at,
    quantileExact(0.5)(lag) AS p50_seconds, quantileExact(0.99)(lag) AS p99_seconds, max(lag) AS max_seconds
FROM
(
    SELECT 'gpu_reading' AS kind, ingested_at, (toUnixTimestamp64Nano(ingested_at) - toUnixTimestamp64Nano(observed_at)) / 1e9 AS lag
    FROM gpu_reading WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
    UNION ALL
    SELECT 'host_reading', ingested_at, (toUnixTimestamp64Nano(ingested_at) - toUnixTimestamp64Nano(observed_at)) / 1e9
    FROM host_reading WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
    UNION ALL
    SELECT 'fault_event', ingested_at, (toUnixTimestamp64Nano(ingested_at) - toUnixTimestamp64Nano(observed_at)) / 1e9
    FROM fault_event WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
    UNION ALL
    SELECT 'finding', ingested_at, (toUnixTimestamp64Nano(ingested_at) - toUnixTimestamp64Nano(observed_at)) / 1e9
    FROM finding WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
)
GROUP BY kind
ORDER BY kind
