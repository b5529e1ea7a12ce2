// What people look up comes before what was decided: decisions name every word of the project.
const Scorer = {
  score: ([page, title, anchor, description, score]) => score - (page.startsWith("docs/decisions/") ? 20 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
