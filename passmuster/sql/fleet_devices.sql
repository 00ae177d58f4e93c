-- Latest reading of every device that reported since a time; `silent_seconds` says how old it is at `now_at`.
SELECT
    cluster, host, device_id, last_at AS observed_at,
    ({now_at:Int64} - toUnixTimestamp64Nano(last_at)) / 1e9 AS silent_seconds,
    tupleElement(last, 1) AS vendor,
    tupleElement(last, 2) AS model,
    tupleElement(last, 3) AS pci_address,
    tupleElement(last, 4) AS `index`,
    tupleElement(last, 5) AS state,
    tupleElement(last, 6) AS power_watts,
    tupleElement(last, 7) AS temperature_celsius,
    tupleElement(last, 8) AS temperature_memory_celsius,
    tupleElement(last, 9) AS clock_graphics_hertz,
    tupleElement(last, 10) AS activity_compute_ratio,
    tupleElement(last, 11) AS memory_used_bytes,
    tupleElement(last, 12) AS memory_total_bytes,
    tupleElement(last, 13) AS ecc_uncorrected_total,
    tupleElement(last, 14) AS recovery_action,
    tupleElement(last, 15) AS links_up,
    tupleElement(last, 16) AS links_total
FROM
(
    -- One argMax over a tuple: argMax of a nullable column would skip nulls and show an older value as the latest.
    SELECT
        cluster, host, device_id, max(observed_at) AS last_at,
        argMax(tuple(
            vendor, model, pci_address, `index`, state, power_watts,
            coalesce(temperature_hotspot_celsius, temperature_core_celsius, temperature_edge_celsius),
            temperature_memory_celsius, clock_graphics_hertz, activity_compute_ratio, memory_used_bytes,
            memory_total_bytes, ecc_uncorrected_total, recovery_action, links_up, links_total
        ), observed_at) AS last
    FROM gpu_reading
    WHERE observed_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
      AND ({host:String} = '' OR host = {host:String})
    GROUP BY cluster, host, device_id
)
ORDER BY cluster, host, `index`, device_id
