SELECT
    machine,
    date_trunc('hour', taken_at) AS hour,
    count(*) AS readings,
    avg(temperature) AS temperature,
    count(*) FILTER (WHERE is_misfit) AS misfits
FROM {{ ref('readings') }}
GROUP BY ALL
