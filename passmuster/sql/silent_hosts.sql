-- Hosts that reported since a time and have been silent for longer than `silent_after_seconds` at `now_at`.
SELECT
    cluster, host, max(last_at) AS observed_at,
    ({now_at:Int64} - toUnixTimestamp64Nano(max(last_at))) / 1e9 AS silent_seconds
FROM
(
    SELECT cluster, host, observed_at AS last_at FROM gpu_reading_latest
    WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
    UNION ALL
    SELECT cluster, host, observed_at AS last_at FROM host_reading_latest
    WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
)
GROUP BY cluster, host
HAVING silent_seconds > {silent_after_seconds:Float64}
ORDER BY silent_seconds DESC
