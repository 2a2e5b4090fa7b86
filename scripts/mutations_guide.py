"""The faults of mutations.py in the support matrix and the page of `regard guide`."""

from mutation import Mutation

GUIDE = ("guide", "*")

GUIDE_MUTATIONS = [
    Mutation("what the machine says is not escaped", "tools/guide/html.cc",
             "case '<': out += \"&lt;\"; break;", "case '<': out += '<'; break;", (GUIDE,)),
    Mutation("a change of the machine's speed is a difference", "tools/guide/report.cc",
             "return ratios.median() >= kTie && ratios.quantile(0.25) > 1.0;",
             "return ratios.median() >= kTie;", (GUIDE,)),
    Mutation("a crossing that does not last counts", "tools/guide/answers.cc",
             "if (!faster) from = nullptr;", "", (GUIDE,)),
    Mutation("the bound of any machine is this one's", "tools/guide/support.cc",
             "const bool holds = env.isa.includes(claim.min_isa) && claim.min_sm <= sm;",
             "const bool holds = true;", (GUIDE,)),
    Mutation("gradients are refused twice", "tools/guide/support.cc",
             "} else if (row.backward[i].kind == SupportCell::Kind::kNo) {",
             "} if (row.backward[i].kind == SupportCell::Kind::kNo) {", (GUIDE,)),
    Mutation("links lead to sections that are not there", "tools/guide/page.cc",
             "if (has_section(report, answer.section)) {", "if (!answer.section.empty()) {",
             (GUIDE,)),
]
