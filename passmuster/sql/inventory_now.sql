-- What is where now (on one host, or on all when `host` is empty).
SELECT
    cluster, host, device_id, vendor, model, architecture, serial, uuid, pci_address, `index`, board_part_number,
    memory_total_bytes, vbios, firmware, driver, numa_node, slot, rack, pool, power_domain, cooling_domain, switch,
    fabric_domain, valid_from_at, in_service_at
FROM inventory FINAL
WHERE valid_until_at IS NULL
  AND ({host:String} = '' OR host = {host:String})
ORDER BY cluster, host, `index`, device_id, valid_from_at DESC
LIMIT 1 BY device_id
