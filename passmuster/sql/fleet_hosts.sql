-- Last state of every host that reported since a time: its devices by state, the age of its last reading, its open findings by severity.
SELECT
    h.cluster AS cluster, h.host AS host, h.vendor AS vendor, h.model AS model, h.devices AS devices, h.ok AS ok,
    h.devices - h.ok AS not_ok, h.last_at AS observed_at,
    ({now_at:Int64} - toUnixTimestamp64Nano(h.last_at)) / 1e9 AS silent_seconds,
    f.critical AS critical, f.error AS error, f.warning AS warning
FROM
(
    SELECT
        cluster, host, min(vendor) AS vendor, min(model) AS model, count() AS devices, countIf(state = 'ok') AS ok,
        max(observed_at) AS last_at
    FROM gpu_reading_latest FINAL
    WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
    GROUP BY cluster, host
) AS h
LEFT JOIN
(
    SELECT
        cluster, host, countIf(severity = 'critical') AS critical, countIf(severity = 'error') AS error,
        countIf(severity = 'warning') AS warning
    FROM finding FINAL
    WHERE cleared_at IS NULL
    GROUP BY cluster, host
) AS f ON h.cluster = f.cluster AND h.host = f.host
ORDER BY cluster, host
