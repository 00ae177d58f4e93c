-- Failures by vendor, model and class: root faults only, nothing that user space could have written, and repeats of a code on a device within `repeat_seconds` of its last time are one failure.
SELECT
    vendor, model, fault_class,
    countIf(fresh) AS failures,
    sum(said) AS events,
    uniqExact(cluster, host, device) AS devices,
    uniqExact(cluster, host) AS hosts,
    groupUniqArray(8)(code) AS codes
FROM
(
    SELECT
        cluster, host, device, vendor, model, fault_class, code, said,
        isNull(previous_at)
            OR toUnixTimestamp64Nano(first_at) - toUnixTimestamp64Nano(assumeNotNull(previous_at)) > {repeat_seconds:Float64} * 1e9 AS fresh
    FROM
    (
        SELECT
            *,
            -- The latest time of any earlier row: a row may end before an earlier one does.
            max(toNullable(last_at)) OVER (
                PARTITION BY cluster, host, device, code ORDER BY first_at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS previous_at
        FROM
        (
            -- The kernel log knows a PCI address, not a serial or a model: the inventory joins them.
            SELECT
                f.cluster AS cluster, f.host AS host, f.code AS code, f.fault_class AS fault_class, f.vendor AS vendor,
                f.first_at AS first_at, f.last_at AS last_at, f.count AS said,
                if(i.device_id != '', i.device_id, f.device_id) AS device,
                if(f.model != '', f.model, i.model) AS model
            FROM fault_event AS f FINAL
            LEFT JOIN
            (
                SELECT
                    cluster, host, assumeNotNull(pci_address) AS pci_address,
                    argMax(device_id, valid_from_at) AS device_id, argMax(model, valid_from_at) AS model
                FROM inventory FINAL
                WHERE pci_address != ''
                GROUP BY cluster, host, pci_address
            ) AS i ON f.cluster = i.cluster AND f.host = i.host AND ifNull(f.pci_address, '') = i.pci_address
            WHERE NOT f.secondary AND f.trust != 'user' AND f.blame != 'none'
              AND f.first_at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC')
              AND f.first_at < fromUnixTimestamp64Nano({until_at:Int64}, 'UTC')
        )
    )
)
GROUP BY vendor, model, fault_class
ORDER BY vendor, model, fault_class
