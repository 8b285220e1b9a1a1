-- Try the locks of the budgets (keys, limited queues); what another claim holds is left to it.
SELECT budget.kind, budget.token
FROM unnest(%(kinds)s::int[], %(tokens)s::text[]) AS budget (kind, token)
WHERE pg_try_advisory_xact_lock(%(namespace)s + budget.kind, hashtext(budget.token))
