-- One host's story on one time axis: faults, findings opened and cleared, hold events, check states, devices that came and went; newest first.
SELECT at, what, device_id, severity, fault_class, code, title, detail
FROM
(
    SELECT first_at AS at, 'fault' AS what, device_id, toString(severity) AS severity,
        toString(fault_class) AS fault_class, toString(code) AS code, text AS title,
        concat(toString(count), ' times until ', toString(last_at), ', said by ', toString(trust)) AS detail
    FROM fault_event FINAL
    WHERE cluster = {cluster:String} AND host = {host:String}
    UNION ALL
    SELECT opened_at, 'finding opened', device_id, toString(severity), toString(fault_class), toString(code), title, next_step
    FROM finding FINAL
    WHERE cluster = {cluster:String} AND host = {host:String}
    UNION ALL
    SELECT assumeNotNull(cleared_at), 'finding cleared', device_id, 'info', toString(fault_class), toString(code), title, ''
    FROM finding FINAL
    WHERE cluster = {cluster:String} AND host = {host:String} AND cleared_at IS NOT NULL
    UNION ALL
    SELECT observed_at, concat('hold ', toString(kind)), device_id, 'info', ifNull(toString(fault_class), ''), toString(`check`), reason, concat('by ', toString(actor))
    FROM hold_event FINAL
    WHERE cluster = {cluster:String} AND host = {host:String}
    UNION ALL
    SELECT since_at, concat('check ', toString(state)), if(subject_kind = 'device', subject_id, ''), 'info', '', toString(`check`), reason, ''
    FROM check_state FINAL
    WHERE cluster = {cluster:String} AND host = {host:String}
    UNION ALL
    SELECT valid_from_at, 'device seen', device_id, 'info', '', '', toString(model), toString(pci_address)
    FROM inventory FINAL
    WHERE cluster = {cluster:String} AND host = {host:String}
    UNION ALL
    SELECT assumeNotNull(valid_until_at), 'device gone or changed', device_id, 'info', '', '', toString(model), toString(pci_address)
    FROM inventory FINAL
    WHERE cluster = {cluster:String} AND host = {host:String} AND valid_until_at IS NOT NULL
)
WHERE at >= fromUnixTimestamp64Nano({since_at:Int64}, 'UTC') AND at < fromUnixTimestamp64Nano({until_at:Int64}, 'UTC')
ORDER BY at DESC, what, code
LIMIT {limit:UInt64}
